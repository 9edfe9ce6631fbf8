"""Packet filters that firewalld or ufw owns: the resource `firewall` has them open the ports.

Begin with `owner`, which tells whose the rules are.
"""
